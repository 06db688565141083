"""What commands share: options, notation, output, failures, progress."""

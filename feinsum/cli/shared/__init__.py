"""Code shared by commands: options, notation, output, failures, progress."""

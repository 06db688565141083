"""Plans of the papers: their schedules, costs and commands, to compare ours with."""

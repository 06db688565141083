"""Schedules, costs and commands of the papers, for comparison with the planner."""

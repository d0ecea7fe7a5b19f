"""How far the replay is off: held against real engines, and against a planner."""

"""``python -m kvpaper.fidelity`` asks the planner's question of the replay; it takes minutes."""

from kvpaper import results
from kvpaper.fidelity import planner

print(results.write(planner.rows(), "public", "60_fleet_planner"))

"""``python -m kvpaper.fidelity`` writes the rows that chapter 60 reads; it takes minutes."""

from kvpaper import results
from kvpaper.fidelity import engines, planner
from kvpaper.lab import records

results.write([*engines.rows(records.records()), *planner.rows()], "public", "60_fleet")

"""Request logs of many formats, read into one canonical block trace."""

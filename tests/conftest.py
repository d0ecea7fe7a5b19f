from hypothesis import settings

# A loaded machine is slow and no less right: no example has a deadline.
settings.register_profile("kvpaper", deadline=None)
settings.load_profile("kvpaper")

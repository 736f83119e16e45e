"""The tests are a package, so that their scripts find each other: site-packages may hold another ``tests``."""

"""The model server: many cameras, one frozen model, one memory per camera."""

"""A fake of swanlab 0.6's init(), config and Image."""
from recorded_calls import Recorded, record

config = Recorded("config")


def init(**keywords):
    record("swanlab", "init", (), keywords)
    return Recorded("run", id="swanlab-run")


def Image(image):
    record("swanlab", "Image", (image,), {})
    return Recorded("image")

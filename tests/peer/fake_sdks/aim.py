"""A fake of aim 3.29's Run and Image."""
from recorded_calls import Recorded, record


class Run(Recorded):
    def __init__(self, **keywords):
        record("aim", "Run", (), keywords)
        super().__init__("run", hash="aim-hash")


def Image(image, caption=""):
    record("aim", "Image", (image,), {"caption": caption})
    return Recorded("image")

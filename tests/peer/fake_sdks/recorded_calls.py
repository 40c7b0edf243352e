"""What the fakes of tracker SDKs in this folder share: they write down each call, with the names that the real SDKs have.

One line of JSON a call, in $FAKE_SDK_RECORD: [object, method, positional arguments, keyword arguments]. With $FAKE_SDK_AWAY naming a
file that exists, a call of logging fails as one does whose server is away.
"""
import json
import os


def shown(value):
    if isinstance(value, Recorded):
        return f"<{value.recorded_name}>"
    if isinstance(value, (list, tuple)):
        return [shown(each) for each in value]
    if hasattr(value, "shape"):
        return {"array": list(value.shape)}
    return value


def record(name, method, arguments, keywords):
    if method.startswith(("log_", "track", "report_", "log")) and os.path.exists(os.environ.get("FAKE_SDK_AWAY", "")):
        raise ConnectionError("the server is away")
    with open(os.environ["FAKE_SDK_RECORD"], "a") as file:
        line = [name, method, shown(arguments), {key: shown(value) for key, value in keywords.items()}]
        file.write(json.dumps(line) + "\n")


class Recorded:
    """An object that takes any call and writes it down."""

    def __init__(self, recorded_name, **members):
        self.__dict__.update(members, recorded_name=recorded_name)

    def __getattr__(self, method):
        if method.startswith("__"):
            raise AttributeError(method)
        return lambda *arguments, **keywords: record(self.recorded_name, method, arguments, keywords)

    def __setitem__(self, key, value):
        record(self.recorded_name, "__setitem__", (key, value), {})

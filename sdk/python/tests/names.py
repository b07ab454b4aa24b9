"""Checks that names of docs/python.md exist: each argument is a path below perdure, a space, and perhaps a parameter."""

import inspect
import sys

import perdure

for name in sys.argv[1:]:
    path, _, parameter = name.partition(" ")
    thing, parent = perdure, None
    for part in path.split("."):
        parent, fields = thing, getattr(thing, "__dataclass_fields__", {})
        if part in fields:
            thing = fields[part]
        elif hasattr(thing, part):
            thing = getattr(thing, part)
        elif inspect.isclass(thing) and "self.%s" % part in inspect.getsource(thing):
            pass
        else:
            sys.exit("docs/python.md names perdure.%s, which does not exist" % path)
    if parameter:
        known = inspect.signature(thing).parameters
        if parameter not in known:
            sys.exit("docs/python.md names the parameter %s of perdure.%s, which has %s" % (parameter, path, [*known]))

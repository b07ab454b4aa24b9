package langgraph

import "strings"

// selected keeps the fields of an object that a caller has named: "metadata", or "values.messages" for one
// entry of a field. Without names it is the object, and names of fields that there are not are ignored.
func selected(out object, names []string) object {
	if len(names) == 0 {
		return out
	}
	part := make(object, len(names))
	for _, name := range names {
		field, entry, nested := strings.Cut(name, ".")
		value, ok := out[field]
		if !ok {
			continue
		}
		if !nested {
			part[field] = value
			continue
		}
		whole, is := value.(object)
		if !is {
			continue
		}
		some, _ := part[field].(object)
		if some == nil {
			some = object{}
		}
		if value, ok = whole[entry]; ok {
			some[entry] = value
		}
		part[field] = some
	}
	return part
}

// selects tells whether an answer has a field, or an entry of it.
func selects(names []string, field string) bool {
	for _, name := range names {
		if first, _, _ := strings.Cut(name, "."); first == field {
			return true
		}
	}
	return len(names) == 0
}

package shape

import "strings"

// Selected keeps the fields of an object that a caller has named: "metadata", or "values.messages" for one
// entry of a field. Without names it is the object, and names of fields that there are not are ignored.
func Selected(out Object, names []string) Object {
	if len(names) == 0 {
		return out
	}
	part := make(Object, len(names))
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
		whole, is := value.(Object)
		if !is {
			continue
		}
		some, _ := part[field].(Object)
		if some == nil {
			some = Object{}
		}
		if value, ok = whole[entry]; ok {
			some[entry] = value
		}
		part[field] = some
	}
	return part
}

// Selects tells whether an answer has a field, or an entry of it.
func Selects(names []string, field string) bool {
	for _, name := range names {
		if first, _, _ := strings.Cut(name, "."); first == field {
			return true
		}
	}
	return len(names) == 0
}

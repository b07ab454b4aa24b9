package perdure

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
)

// maxMetadataBytes limits the bytes of all keys and values of a run's metadata together.
const maxMetadataBytes = 16 << 10

// MergeMetadata merges an object into the metadata of a thread. A key replaces the value of its name and
// keeps its place, a new one comes last, and null removes one. Metadata that are no object are replaced.
// The run that spawned the child of a thread stays as it is.
func MergeMetadata(old, patch json.RawMessage) (json.RawMessage, error) {
	changes, ok := membersOf(patch)
	if !ok {
		return nil, Invalid("metadata", "is no object")
	}
	members, _ := membersOf(old)
	for _, c := range changes {
		if c.key == ThreadParent && ParentOfThread(string(old)) != "" {
			return nil, Invalid("metadata."+ThreadParent, "says which run the thread was made for, and stays")
		}
		at := slices.IndexFunc(members, func(m member) bool { return m.key == c.key })
		switch null := string(c.value) == "null"; {
		case null && at >= 0:
			members = slices.Delete(members, at, at+1)
		case null:
		case at >= 0:
			members[at].value = c.value
		default:
			members = append(members, c)
		}
	}
	out := []byte{'{'}
	for i, m := range members {
		if i > 0 {
			out = append(out, ',')
		}
		key, err := Encode(m.key)
		if err != nil {
			return nil, err
		}
		out = append(append(append(out, key...), ':'), m.value...)
	}
	out = append(out, '}')
	return out, CheckValue("metadata", out)
}

// A member is a key of an object with its value.
type member struct {
	key   string
	value json.RawMessage
}

// membersOf reads the members of a JSON object in their order. ok is false if it is none.
func membersOf(object json.RawMessage) (out []member, ok bool) {
	d := json.NewDecoder(bytes.NewReader(object))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, false
	}
	for d.More() {
		var m member
		key, err := d.Token()
		if err != nil || d.Decode(&m.value) != nil {
			return nil, false
		}
		m.key, _ = key.(string)
		out = append(out, m)
	}
	return out, true
}

// checkMetadata checks the metadata of a run: its entries, their names and values, and the total
// size.
func checkMetadata(field string, metadata map[string]string) error {
	if len(metadata) > MaxMetadata {
		return tooLarge(field, "has %d entries; a run takes %d", len(metadata), MaxMetadata)
	}
	size := 0
	for _, k := range slices.Sorted(maps.Keys(metadata)) {
		v := metadata[k]
		if err := checkName(field, k); err != nil {
			return err
		}
		if err := checkText(field+"."+k, v); err != nil {
			return err
		}
		size += len(k) + len(v)
	}
	if size > maxMetadataBytes {
		return tooLarge(field, "has %d bytes of keys and values; a run takes %d", size, maxMetadataBytes)
	}
	return nil
}

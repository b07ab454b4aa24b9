package frame

import "strings"

// MaxAnswer bounds the bytes of an answer that is not a stream.
const MaxAnswer = 8 << 20

// Ignored is the key in a run's metadata that names the fields which a door knows and can't honour.
const Ignored = "door.ignored"

// maxIgnored bounds the value of Ignored.
const maxIgnored = 500

// IgnoredFields lists the fields that a door can't honour, for the metadata of a run.
func IgnoredFields(fields []string) string {
	text := strings.Join(fields, " ")
	if len(text) > maxIgnored {
		text = text[:strings.LastIndexByte(text[:maxIgnored-3], ' ')+1] + "…"
	}
	return text
}

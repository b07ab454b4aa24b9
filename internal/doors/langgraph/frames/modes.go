package frames

import (
	"maps"
	"net/url"
	"strings"
)

// ModesOf reads stream_mode: a word, or a list. The default is values.
func ModesOf(words []string) map[string]bool {
	out := make(map[string]bool)
	for _, w := range words {
		out[w] = true
	}
	if len(out) == 0 {
		out["values"] = true
	}
	return maps.Clone(out)
}

// Honoured are the modes that have frames of their own.
var Honoured = []string{"custom", "messages", "messages-tuple", "updates", "values"}

// ListOf lists the modes that have frames, with commas. Without any it is error, which every stream has.
func ListOf(modes map[string]bool) string {
	var list []string
	for _, word := range Honoured {
		if modes[word] {
			list = append(list, word)
		}
	}
	if len(list) == 0 { // the others are silent
		list = []string{"error"}
	}
	return strings.Join(list, ",")
}

// ModeQuery is the query of a stream's Location. A client that starts a run says the modes in the body, and
// attaches again with nothing but the Location and the id of its last frame, which counts frames of these modes.
func ModeQuery(modes map[string]bool) string {
	list := ListOf(modes)
	if list == "values" {
		return ""
	}
	return "?" + url.Values{"stream_mode": strings.Split(list, ",")}.Encode()
}

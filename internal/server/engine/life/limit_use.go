package life

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/server/engine/kernel"
	"github.com/perdure/perdure/internal/server/engine/rules"
)

// useLimits puts a new run under the limits that its request names and those of its kind and its queue. A limit that a
// request names has to be there. One that a kind or a queue names may come later.
func useLimits(
	tx *kernel.Tx, r *perdure.Run, names []string, key string, units int, input json.RawMessage,
) error {
	kind, err := rules.KindOf(tx, r.Tenant, r.Kind)
	if err != nil {
		return err
	}
	ofQueue, atOnce, err := rules.LimitsOfQueue(tx, r.Tenant, r.Queue)
	if err != nil || len(names)+len(kind.Limits)+len(ofQueue)+kind.Concurrency+atOnce == 0 {
		return err
	}
	if err := tx.Requires(kernel.Limits); err != nil && len(names) > 0 {
		return err
	} else if err != nil {
		return nil // the limits of kinds and queues count when the last node knows them
	}
	for _, name := range names {
		if _, ok, err := limitOf(tx, r.Tenant, name); err != nil {
			return err
		} else if !ok {
			return &perdure.Error{Code: perdure.CodeUnknownLimit, Field: "limits",
				Message: "there is no limit " + strconv.Quote(name)}
		}
	}
	u := &perdure.LimitUse{Names: slices.Clone(names), Key: key, Units: units}
	for _, name := range slices.Concat(kind.Limits, ofQueue) {
		if !slices.Contains(u.Names, name) {
			u.Names = append(u.Names, name)
		}
	}
	if kind.Concurrency > 0 {
		u.Names = append(u.Names, perdure.LimitOfKind+r.Kind)
	}
	if atOnce > 0 {
		u.Names = append(u.Names, perdure.LimitOfQueue+r.Queue)
	}
	if u.Key == "" && kind.LimitKeyFrom != "" {
		u.Key = valueAt(input, kind.LimitKeyFrom)
		if perdure.CheckLimitKey("input", u.Key) != nil {
			return perdure.Unprocessable("input", "what is at %s is no key of a limit: it has more than %d bytes or a "+
				"control character", kind.LimitKeyFrom, perdure.MaxLimitKey)
		}
	}
	r.Options.Limits = u
	return nil
}

// valueAt gives the text, number or boolean at a JSON Pointer, or nothing.
func valueAt(input json.RawMessage, pointer string) string {
	for part := range strings.SplitSeq(pointer[1:], "/") {
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		input = bytes.TrimSpace(input)
		switch {
		case len(input) > 0 && input[0] == '{':
			var members map[string]json.RawMessage
			if json.Unmarshal(input, &members) != nil {
				return ""
			}
			input = members[part]
		case len(input) > 0 && input[0] == '[':
			var list []json.RawMessage
			n, err := strconv.Atoi(part)
			if err != nil || json.Unmarshal(input, &list) != nil || n < 0 || n >= len(list) {
				return ""
			}
			input = list[n]
		default:
			return ""
		}
	}
	switch input = bytes.TrimSpace(input); {
	case len(input) == 0 || input[0] == '{' || input[0] == '[' || string(input) == "null":
		return ""
	case input[0] == '"':
		var text string
		if json.Unmarshal(input, &text) != nil {
			return ""
		}
		return text
	}
	return string(input)
}

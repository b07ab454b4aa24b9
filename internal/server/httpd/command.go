package httpd

import (
	"encoding/json"
	"regexp"
	"strings"

	"github.com/perdure/perdure"
)

const (
	// maxCommand is how many bytes of a command are shown in a list.
	maxCommand = 200
	// maxCommandInput bounds the inputs that are read for it.
	maxCommandInput = 64 << 10
)

// plainWord is an argument that needs no quotes.
var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// commandOf gives the command of a process for lists, as one would type it. It is empty for other runs.
func commandOf(r *perdure.Run) string {
	if !r.Options.Process || len(r.Input) == 0 || len(r.Input) > maxCommandInput {
		return ""
	}
	// Any input is allowed. One without a command shows none.
	var input struct {
		Command json.RawMessage `json:"command"`
	}
	if json.Unmarshal([]byte(r.Input), &input) != nil {
		return ""
	}
	var words []string
	var line string
	if json.Unmarshal(input.Command, &words) == nil {
		for i, w := range words {
			if !plainWord.MatchString(w) {
				words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
			}
		}
		line = strings.Join(words, " ")
	} else if json.Unmarshal(input.Command, &line) != nil {
		return ""
	}
	if len(line) > maxCommand {
		line = strings.ToValidUTF8(line[:maxCommand], "") + "…"
	}
	return line
}

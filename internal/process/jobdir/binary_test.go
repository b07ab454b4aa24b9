package jobdir

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/wire/redact"
)

// Secrets are taken out of the base64 of binary output, wherever they stand. What is around them can
// be read.
func TestRedactedBinaryOutputCanBeRead(t *testing.T) {
	const secret = "hunter2-hunter2"
	secrets, err := redact.New([]string{secret})
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []string{"", "\xff", "\xff.", "\xff..", strings.Repeat("\xff line\n", 20)} {
		for _, after := range []string{"", "\n", "\n\xff", "\n and more\xff", " and " + secret + " again\xff\n"} {
			sent, err := json.Marshal(&Output{Stream: Stdout, Base64: []byte(before + secret + after)})
			if err != nil {
				t.Fatal(err)
			}
			stored := secrets.JSON(sent)
			var got Output
			if err := json.Unmarshal(stored, &got); err != nil {
				t.Errorf("%q is stored as %s, and can't be read: %v", before+secret+after, stored, err)
				continue
			}
			text := string(got.Bytes())
			_, last, _ := strings.Cut(after, secret)
			if !strings.Contains(after, secret) {
				last = after
			}
			// A group of base64 that has bytes of the secret is gone with it: at most two bytes.
			if strings.Contains(text, secret) || !strings.Contains(text, redact.Mark) ||
				!strings.HasPrefix(text, before[:max(0, len(before)-2)]) ||
				!strings.HasSuffix(text, last[min(2, len(last)):]) {
				t.Errorf("%q is read as %q, want what is around the secret", before+secret+after, text)
			}
		}
	}
	var o Output
	if err := json.Unmarshal([]byte(`{"base64":"no base64"}`), &o); err == nil {
		t.Error("what is no base64 was read, want an error")
	}
	sent := `{"base64":"` + base64.StdEncoding.EncodeToString([]byte{0, 255}) + `"}`
	if err := json.Unmarshal([]byte(sent), &o); err != nil || string(o.Base64) != "\x00\xff" {
		t.Errorf("base64 is read as %q (error %v), want its bytes", o.Base64, err)
	}
}

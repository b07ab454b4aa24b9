package perdure

import (
	"mime"
	"regexp"
	"strings"
)

// An Artifact is a named file that a run leaves beside its result. The store keeps its bytes under
// their hash, once per tenant.
type Artifact struct {
	Tenant      TenantID `json:"-"`
	RunID       RunID    `json:"run_id"`
	Name        string   `json:"name"`
	Size        int64    `json:"size"`
	SHA256      string   `json:"sha256"`
	ContentType string   `json:"content_type"`
	At          Instant  `json:"at"`
	Attempt     int      `json:"attempt"` // the attempt that stored it
}

// MaxArtifacts limits the artifacts of one run. Policy limits their sizes.
const MaxArtifacts = 100

// AnyContent is the content type of an artifact that was sent without one.
const AnyContent = "application/octet-stream"

var artifactName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// CheckArtifactName refuses a name that is not a plain file name.
func CheckArtifactName(name string) error {
	if !artifactName.MatchString(name) {
		return Invalid("name",
			"has up to 128 letters, digits, dots, dashes and underscores, and begins with a letter or a digit")
	}
	return nil
}

// CheckContentType checks a content type and returns it in the form in which it is stored.
func CheckContentType(text string) (string, error) {
	if text == "" {
		return AnyContent, nil
	}
	bad := Invalid("content-type", "is none such as text/csv; charset=utf-8")
	if len(text) > MaxName {
		return "", bad
	}
	for _, r := range text {
		if r < ' ' || r > '~' {
			return "", bad
		}
	}
	kind, params, err := mime.ParseMediaType(text)
	if err != nil || !strings.Contains(kind, "/") {
		return "", bad
	}
	out := mime.FormatMediaType(kind, params)
	if out == "" || len(out) > MaxName {
		return "", bad
	}
	return out, nil
}

// CheckSHA256 refuses a text that is not a SHA-256 hash in lower-case hexadecimal.
func CheckSHA256(text string) error {
	if !sha256Text.MatchString(text) {
		return Invalid("sha256", "has 64 hexadecimal digits, in lower case")
	}
	return nil
}

var sha256Text = regexp.MustCompile(`^[0-9a-f]{64}$`)

// leftOf summarizes the artifacts of a run for its fallback.
func leftOf(list []Artifact) (out []Value) {
	for _, a := range list {
		out = append(out, object("name", a.Name, "size", a.Size, "sha256", a.SHA256))
	}
	return out
}

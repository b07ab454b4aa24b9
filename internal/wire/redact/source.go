package redact

import (
	"fmt"
	"os"
	"strings"
)

// Load reads secrets from their sources: env:NAME is an environment variable, file:PATH a file.
// Each line is a secret. A source that is missing, empty or too short is an error, because the
// server must not start without a secret that it is to redact.
func Load(sources []string) (*Set, error) {
	var secrets []string
	for _, source := range sources {
		found, err := read(strings.TrimSpace(source))
		if err != nil {
			return nil, fmt.Errorf("secrets: %w", err)
		}
		secrets = append(secrets, found...)
	}
	set, err := New(secrets)
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	return set, nil
}

// maxFile limits a file of secrets.
const maxFile = 1 << 20

func read(source string) ([]string, error) {
	kind, name, _ := strings.Cut(source, ":")
	var text string
	switch {
	case kind == "env" && name != "":
		var ok bool
		if text, ok = os.LookupEnv(name); !ok {
			return nil, fmt.Errorf("%s: the variable is not set", source)
		}
	case kind == "file" && name != "":
		info, err := os.Stat(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		if !info.Mode().IsRegular() || info.Size() > maxFile {
			return nil, fmt.Errorf("%s: is no file of at most %d bytes", source, maxFile)
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		text = string(b)
	default:
		// The source may be the secret itself, so the error does not repeat it.
		return nil, fmt.Errorf("a secret is named as env:NAME or file:PATH; its value has no place in the " +
			"configuration")
	}
	return lines(source, text)
}

// lines returns the secrets of a text. The BEGIN and END lines of a PEM key are skipped, and so is
// a short last line.
func lines(source, text string) (out []string, err error) {
	pem := strings.HasPrefix(text, "-----BEGIN ")
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || pem && (strings.HasPrefix(line, "-----") || len(line) < MinLength) {
			continue
		}
		if err := check(line); err != nil {
			return nil, fmt.Errorf("%s: line %d %w", source, n, err)
		}
		out = append(out, line)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: is empty", source)
	}
	return out, nil
}

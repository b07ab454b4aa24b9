package redact

import (
	"fmt"
	"os"
	"strings"
)

// Load reads secrets from where they are: env:NAME is an environment variable, file:PATH a file, each line of either a secret
// of its own. What is missing, empty or too short is an error: who asks for a secret to be kept out is not served without.
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

// maxFile bounds a file of secrets.
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
		// It may be a secret itself, written where only its name belongs: it is not repeated.
		return nil, fmt.Errorf("a secret is named as env:NAME or file:PATH; its value has no place in the configuration")
	}
	return lines(source, text)
}

// lines gives the secrets of a text. Of a key in PEM what frames it is none, nor its last line if that is short.
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

package again

import (
	"slices"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/doors/frame"
	"github.com/perdure/perdure/internal/doors/openai/shape"
)

// Bounds of the metadata.
const (
	maxMetadata = 16
	// maxKeys is how many entries of the metadata are keys to search by.
	maxKeys = 10
)

// metadata are those of a run.
func metadata(e *shape.Echo, digest string, ignored []string) (map[string]string, error) {
	if len(e.Metadata) > maxMetadata {
		return nil, perdure.OverBound("metadata", "has %d entries; a response takes %d", len(e.Metadata), maxMetadata)
	}
	out := make(map[string]string)
	for _, k := range sortedKeys(e.Metadata) {
		if len(out) == maxKeys {
			break
		}
		if !strings.HasPrefix(k, "door.") && perdure.CheckName("metadata", k) == nil {
			out[k] = e.Metadata[k]
		}
	}
	b, err := perdure.Marshal(e)
	if err != nil {
		return nil, err
	}
	out[shape.EchoKey], out[shape.DigestKey] = string(b), digest
	if len(ignored) > 0 {
		out[frame.Ignored] = frame.IgnoredFields(ignored)
	}
	return out, nil
}

func sortedKeys(m map[string]string) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

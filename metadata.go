package perdure

import (
	"fmt"
	"maps"
	"slices"
)

// MaxMetadataBytes bounds a run's metadata: the bytes of all its keys and values together.
const MaxMetadataBytes = 16 << 10

// checkMetadata checks the metadata of a run: the number of entries, the names, the values, and the bytes of all of them.
func checkMetadata(field string, metadata map[string]string) error {
	if len(metadata) > MaxMetadata {
		return &Error{Code: CodeTooLarge, Field: field, Message: fmt.Sprintf("has %d entries; a run takes %d", len(metadata), MaxMetadata)}
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
	if size > MaxMetadataBytes {
		return &Error{Code: CodeTooLarge, Field: field,
			Message: fmt.Sprintf("has %d bytes of keys and values; a run takes %d", size, MaxMetadataBytes)}
	}
	return nil
}

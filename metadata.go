package perdure

import (
	"maps"
	"slices"
)

// maxMetadataBytes limits the bytes of all keys and values of a run's metadata together.
const maxMetadataBytes = 16 << 10

// checkMetadata checks the metadata of a run: its entries, their names and values, and the total
// size.
func checkMetadata(field string, metadata map[string]string) error {
	if len(metadata) > MaxMetadata {
		return tooLarge(field, "has %d entries; a run takes %d", len(metadata), MaxMetadata)
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
	if size > maxMetadataBytes {
		return tooLarge(field, "has %d bytes of keys and values; a run takes %d", size, maxMetadataBytes)
	}
	return nil
}

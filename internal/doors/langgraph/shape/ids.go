package shape

import (
	"crypto/sha1"
	"encoding/hex"
	"net/url"
	"slices"
)

// graphs is the namespace of the ids of assistants, as the reference server has it.
var graphs = [16]byte{0x6b, 0xa7, 0xb8, 0x21, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}

// IDOfKind is the UUIDv5 of a kind's name.
func IDOfKind(kind string) string {
	return UUIDOf(slices.Concat(graphs[:], []byte(kind)))
}

// UUIDOf is the UUIDv5 of a name that begins with its namespace.
func UUIDOf(name []byte) string {
	sum := sha1.Sum(name)
	sum[6], sum[8] = sum[6]&0x0f|0x50, sum[8]&0x3f|0x80
	x := hex.EncodeToString(sum[:16])
	return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
}

// Prefix begins the names that the door gives.
const Prefix = "langgraph:"

// Escape makes a segment of a path of a text.
func Escape(segment string) string { return url.PathEscape(segment) }

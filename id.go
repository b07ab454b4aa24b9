package perdure

import (
	"encoding/hex"
	"io"
	"strconv"
)

// Ids are typed strings, so that the compiler tells a thread from a run. A TenantID comes only from
// a credential, never from a request body.
type (
	TenantID string
	RunID    string
	ThreadID string
	GroupID  string
)

// NewID makes a UUIDv7 from an instant, a count and 8 random bytes. All three are arguments, so
// that the same seed gives the same ids. The low 12 bits of the count order the ids that one node
// makes within a millisecond. Siblings that are spawned together are therefore granted in the order
// of their spawn.
func NewID(now Instant, count uint32, random io.Reader) (string, error) {
	var b [16]byte
	if _, err := io.ReadFull(random, b[8:]); err != nil {
		return "", err
	}
	b[6], b[7] = byte(count>>8), byte(count)
	ms := uint64(now) / 1000
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return uuid(b), nil
}

// FirstID returns the lower bound of the ids made at an instant or later: these are greater, and
// ids of earlier milliseconds are less.
func FirstID(at Instant) string {
	var b [16]byte
	ms := uint64(max(at, 0)) / 1000
	for i := range 6 {
		b[i] = byte(ms >> (40 - 8*i))
	}
	return uuid(b)
}

// IDTime returns when an id was made, to the millisecond, or zero if it is none of NewID.
func IDTime(id string) Instant {
	if len(id) < 13 || id[8] != '-' {
		return 0
	}
	ms, err := strconv.ParseInt(id[:8]+id[9:13], 16, 64)
	if err != nil {
		return 0
	}
	return Instant(ms * 1000)
}

// uuid formats 16 bytes as a UUID.
func uuid(b [16]byte) string {
	var s [36]byte
	hex.Encode(s[0:8], b[0:4])
	hex.Encode(s[9:13], b[4:6])
	hex.Encode(s[14:18], b[6:8])
	hex.Encode(s[19:23], b[8:10])
	hex.Encode(s[24:36], b[10:16])
	s[8], s[13], s[18], s[23] = '-', '-', '-', '-'
	return string(s[:])
}

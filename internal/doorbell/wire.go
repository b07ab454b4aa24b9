package doorbell

import (
	"encoding/binary"
	"errors"
)

// A message is a batch of rings: a version, what it is for, who sent it, and the rings, each with a letter
// before it.
//
//	2 flags node[8] ('r' key[8] | 'q' key[8] or[3][8] n)…
//
// Whoever reads it trusts nothing of it and needs nothing of it: it says where to look.
type message struct {
	flags byte
	node  uint64
	rings []ring
}

const (
	flagAll    = 1 << iota // look at everything
	flagHello              // the sender is there
	flagAnswer             // and would like to know who else is

	wireVersion = 2
	wireHeader  = 10
	wireRing    = 1 + 4*8 + binary.MaxVarintLen32 // at most
	maxMessage  = 64 << 10
	maxCount    = 1 << 20 // of runs in one ring
)

func appendHeader(b []byte, flags byte, node uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, wireVersion, flags), node)
}

func appendRing(b []byte, r ring) []byte {
	if r.n == 0 {
		return binary.BigEndian.AppendUint64(append(b, 'r'), uint64(r.key))
	}
	b = binary.BigEndian.AppendUint64(append(b, 'q'), uint64(r.key))
	for _, k := range r.or {
		b = binary.BigEndian.AppendUint64(b, uint64(k))
	}
	return binary.AppendUvarint(b, uint64(min(r.n, maxCount)))
}

var errNonsense = errors.New("not a message of a doorbell")

// decode reads a message whole, or not at all.
func (m *message) decode(b []byte) error {
	m.rings = m.rings[:0]
	if len(b) < wireHeader || len(b) > maxMessage || b[0] != wireVersion {
		return errNonsense
	}
	m.flags, m.node = b[1], binary.BigEndian.Uint64(b[2:])
	for b = b[wireHeader:]; len(b) > 0; {
		var r ring
		switch {
		case b[0] == 'r' && len(b) >= 9:
			r.key, b = key(binary.BigEndian.Uint64(b[1:])), b[9:]
		case b[0] == 'q' && len(b) > 1+4*8:
			r.key, b = key(binary.BigEndian.Uint64(b[1:])), b[9:]
			for i := range r.or {
				r.or[i], b = key(binary.BigEndian.Uint64(b)), b[8:]
			}
			n, size := binary.Uvarint(b)
			if size <= 0 || n == 0 || n > maxCount {
				return errNonsense
			}
			r.n, b = int(n), b[size:]
		default:
			return errNonsense
		}
		m.rings = append(m.rings, r)
	}
	return nil
}

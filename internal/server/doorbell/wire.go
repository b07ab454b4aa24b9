package doorbell

import (
	"encoding/binary"
	"errors"
)

// A message is a batch of rings. Its format is a version, flags, the sender's node id, and the
// rings, each with a letter for its type:
//
//	2 flags node[8] ('r' key[8] | 'q' key[8] or[3][8] n)…
//
// 'r' is a ring of a run, 'q' of a queue with n runs as a varint. Numbers are big-endian. The
// reader trusts nothing in it: a ring only says where to look.
type message struct {
	flags byte
	node  uint64
	rings []ring
}

const (
	flagAll    = 1 << iota // look at everything
	flagHello              // the sender exists
	flagAnswer             // the sender asks the others for a flagHello

	wireVersion = 2
	wireHeader  = 10
	wireRing    = 1 + 4*8 + binary.MaxVarintLen32 // the largest size
	maxMessage  = 64 << 10
	maxCount    = 1 << 20 // runs in one ring
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

var errInvalid = errors.New("not a message of a doorbell")

// decode parses a message. A message with any error is refused as a whole.
func (m *message) decode(b []byte) error {
	m.rings = m.rings[:0]
	if len(b) < wireHeader || len(b) > maxMessage || b[0] != wireVersion {
		return errInvalid
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
				return errInvalid
			}
			r.n, b = int(n), b[size:]
		default:
			return errInvalid
		}
		m.rings = append(m.rings, r)
	}
	return nil
}

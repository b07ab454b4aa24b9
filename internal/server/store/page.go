package store

import (
	"errors"
)

// A Page selects a part of a list: entries after a key, up to Limit, and up to Bytes unless there
// is only one.
type Page struct {
	After        string
	Limit, Bytes int // zero Bytes: PageBytes
}

// paged reads a page of rows in the order of a key. next is the key of the last entry, if there may
// be more. It reads a few rows at a time, so that large ones are not read in vain.
func paged[T any](
	p Page, read func(after string, n int, row func(*T) error) error, key func(*T) string, size func(*T) int,
) (out []T, next string, err error) {
	if p.Bytes == 0 {
		p.Bytes = PageBytes
	}
	for after := p.After; ; {
		n := 0
		err := read(after, rowsAtFirst, func(x *T) error {
			n++
			bytes := size(x)
			if len(out) > 0 && bytes > p.Bytes {
				next = after
				return errEnough
			}
			out, after, p.Bytes = append(out, *x), key(x), p.Bytes-bytes
			if len(out) == p.Limit {
				next = after
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			return out, next, nil
		}
		if err != nil || n < rowsAtFirst {
			return out, "", err
		}
	}
}

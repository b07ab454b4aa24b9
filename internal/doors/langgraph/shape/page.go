package shape

import "github.com/perdure/perdure"

// Page is a part of a list.
type Page struct {
	Limit  int `json:"limit"`
	Offset int `json:"offset"`
}

const (
	DefaultPage = 10
	MaxPage     = 100
	MaxOffset   = 1000
)

// Check fills in the default, and refuses what is out of bounds.
func (p *Page) Check() error {
	switch {
	case p.Limit < 0 || p.Limit > MaxPage*10:
		return perdure.Invalid("limit", "lies between 1 and %d", MaxPage)
	case p.Offset < 0 || p.Offset > MaxOffset:
		return perdure.Invalid("offset", "lies between 0 and %d", MaxOffset)
	case p.Limit == 0:
		p.Limit = DefaultPage
	}
	p.Limit = min(p.Limit, MaxPage)
	return nil
}

// PartOf returns the part of a list, and whether more follows.
func PartOf[T any](p Page, all []T) (part []T, more bool) {
	begin := min(p.Offset, len(all))
	end := min(begin+p.Limit, len(all))
	return all[begin:end], end < len(all)
}

// MaxBatch bounds the runs of one call.
const MaxBatch = 100

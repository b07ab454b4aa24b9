package doors

import (
	"context"

	"github.com/perdure/perdure"
)

// Follow streams the frames of a run after a cursor, until the translation says that there are no more
// or the log ends. The log is read from its first line, because frames depend on all lines before, and
// the frames that the caller has are dropped. head is the last line that is known: what is before it is
// written without a flush for each line.
func (s *Stream) Follow(ctx context.Context, id perdure.RunID, head int64, from Cursor, t Translation) error {
	for e, err := range s.call.Lines(ctx, id, 0) {
		if err != nil {
			return err
		}
		if err := s.Begin(); err != nil {
			return err
		}
		frames, more, err := t(e)
		if err != nil {
			return err
		}
		skip := 0
		for skip < len(frames) && from.Has(e.Seq, skip+1) {
			skip++
		}
		flush := e.Seq >= head || !more
		if len(frames) > skip || flush {
			if err := s.Send(e.Seq, skip+1, frames[skip:], flush); err != nil {
				return err
			}
		}
		if !more {
			return nil
		}
	}
	return nil
}

package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// The last bytes of a backup are a line with the SHA-256 of everything before it, so that damage of
// any byte is noticed. SQLite knows the number of pages from its header and ignores what follows
// them.

const (
	sealBegins = "\nperdure backup sha256 "
	sealSize   = int64(len(sealBegins) + 2*sha256.Size + 1)
)

var (
	errNoSeal  = errors.New("this is no backup, or the end of it is missing: perdure backup makes one")
	errChanged = errors.New("the backup is damaged: it is not what was written")
)

func sealOf(sum []byte) []byte { return []byte(sealBegins + hex.EncodeToString(sum) + "\n") }

// seal appends the seal to a file.
func seal(ctx context.Context, f io.ReadWriteSeeker) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, cancellable{ctx, f}); err != nil {
		return err
	}
	_, err := f.Write(sealOf(h.Sum(nil)))
	return err
}

// unseal copies the contents without the seal, and refuses a file that has changed.
func unseal(ctx context.Context, to io.Writer, f io.ReadSeeker) error {
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("read the backup: %w", err)
	}
	if size < sealSize {
		return errNoSeal
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.CopyN(io.MultiWriter(to, h), cancellable{ctx, f}, size-sealSize); err != nil {
		return err
	}
	end := make([]byte, sealSize)
	if _, err := io.ReadFull(f, end); err != nil {
		return err
	}
	switch {
	case !bytes.HasPrefix(end, []byte(sealBegins)):
		return errNoSeal
	case !bytes.Equal(end, sealOf(h.Sum(nil))):
		return errChanged
	}
	return nil
}

// A cancellable reads until its context is cancelled.
type cancellable struct {
	ctx  context.Context
	from io.Reader
}

func (c cancellable) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.from.Read(p)
}

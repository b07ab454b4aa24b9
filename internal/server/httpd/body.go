package httpd

import (
	"bytes"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// maxBody bounds a request's body.
const maxBody = 16 << 20

// maxOpenBody bounds the body of a call without a key. It has room for one value and its envelope.
const maxOpenBody = perdure.MaxValue + 64<<10

// decode reads a JSON body strictly.
func (c *call) decode(into any) error {
	b, err := c.body()
	if err != nil {
		return err
	}
	if len(b) == 0 {
		b = []byte("{}")
	}
	end, err := c.share.turn(c.Context(), int64(len(b)))
	if err != nil {
		return err
	}
	defer end()
	return decodeStrict(b, into)
}

// noBody refuses a body other than {}.
func (c *call) noBody() error {
	b, err := c.body()
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(b)) > 0 && string(bytes.TrimSpace(b)) != "{}" {
		return perdure.Errorf(perdure.CodeInvalid, "this call takes no body")
	}
	return nil
}

// body reads the body within its limits of size, time and memory, and removes secrets from it.
func (c *call) body() ([]byte, error) {
	limit := int64(maxBody)
	if c.key.ID == "" {
		limit = maxOpenBody
	}
	tooLarge := perdure.Errorf(perdure.CodeTooLarge, "this request has at most %d bytes", limit)
	if c.ContentLength > limit {
		c.w.Header().Set("Connection", "close")
		return nil, tooLarge
	}
	if err := checkByteQuota(c); err != nil {
		return nil, err
	}
	if err := c.share.reserveBody(c.Context(), c.ContentLength); err != nil {
		c.w.Header().Set("Connection", "close") // the body is not read
		return nil, err
	}
	b, err := readBody(c, limit)
	if err != nil {
		c.w.Header().Set("Connection", "close") // the rest of the body is not read
		var big *http.MaxBytesError
		var refused *perdure.Error
		switch {
		case errors.As(err, &big):
			return nil, tooLarge
		case errors.As(err, &refused):
			return nil, err
		}
		return nil, bodyError(c, err)
	}
	countBytes(c, len(b))
	if c.key.ID != "" { // the key may have been revoked while the body arrived
		if err := c.checkKey(); err != nil {
			return nil, err
		}
	}
	if len(b) == 0 {
		return nil, nil
	}
	if t, _, err := mime.ParseMediaType(c.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, perdure.Errorf(api.CodeMediaType, "send Content-Type: application/json")
	}
	end, err := c.share.turn(c.Context(), int64(len(b)))
	if err != nil {
		return nil, err
	}
	defer end()
	return c.s.opt.Secrets.JSON(b), nil
}

// readBody reads a body of at most so many bytes. A body of unknown length that is not small
// reserves memory for the largest one.
func readBody(c *call, limit int64) ([]byte, error) {
	// The deadline ends a body that arrives too slowly. It is cleared afterwards, because net/http
	// reads on while the call blocks, to notice that the client has gone. A call in process has no
	// deadline.
	rc := http.NewResponseController(c.w)
	_ = rc.SetReadDeadline(time.Now().Add(c.s.opt.BodyTimeout))
	from := io.Reader(http.MaxBytesReader(c.w, c.Body, limit))
	var b bytes.Buffer
	if c.ContentLength > 0 {
		b.Grow(int(c.ContentLength) + bytes.MinRead)
	} else if _, err := b.ReadFrom(io.LimitReader(from, smallBody+1)); err != nil {
		return nil, err
	} else if b.Len() > smallBody {
		if err := c.share.reserveBody(c.Context(), limit); err != nil {
			return nil, err
		}
	}
	if _, err := b.ReadFrom(from); err != nil {
		return nil, err
	}
	_ = rc.SetReadDeadline(time.Time{})
	return b.Bytes(), nil
}

// checkByteQuota refuses a call whose tenant has used its bytes per hour. A call without a key has no
// tenant that could use them.
func checkByteQuota(c *call) error {
	if c.key.ID == "" {
		return nil
	}
	wait := c.share.byteWait()
	if wait == 0 {
		return nil
	}
	c.w.Header().Set("Connection", "close") // the body is not read
	c.w.Header().Set("Retry-After", strconv.FormatInt(int64(math.Ceil(min(wait, 10*time.Minute).Seconds())), 10))
	return tooBusy("this tenant has sent as many bytes in an hour as it may; nothing was changed")
}

// countBytes counts bytes that were received against the bytes per hour.
func countBytes(c *call, n int) {
	if c.key.ID != "" {
		c.share.spend(n)
	}
}

// drainBytes and drainTime bound what is read and discarded of a body that was refused for its
// size.
const (
	drainBytes = 4 * maxBody
	drainTime  = 5 * time.Second
)

// drain flushes the answer and discards the rest of the body. A client that writes its whole body
// before it reads would otherwise find the connection reset, and never see the answer. A client
// that waits for 100 Continue sends no body, and is not drained.
func drain(c *call) {
	rc := http.NewResponseController(c.w)
	if c.Header.Get("Expect") != "" || rc.Flush() != nil || rc.SetReadDeadline(time.Now().Add(drainTime)) != nil {
		return
	}
	_, _ = io.CopyN(io.Discard, c.Body, drainBytes) // an error means that the client is gone
}

// bodyError returns the error of a body that could not be read. The original error is not shown: it
// may have the addresses of the connection.
func bodyError(c *call, err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return perdure.Errorf(perdure.CodeInvalid, "the body did not arrive within %s", c.s.opt.BodyTimeout)
	}
	return perdure.Errorf(perdure.CodeInvalid, "the body broke off")
}

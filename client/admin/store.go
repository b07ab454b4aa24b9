package admin

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/internal/wire/session"
)

// Backup writes a consistent backup of the whole store and returns its size in bytes. It needs a
// platform key. If there is an error, the written backup is incomplete.
func (c *Client) Backup(ctx context.Context, to io.Writer) (int64, error) {
	res, err := c.calls.Open(ctx, &session.Call{Method: "GET", Path: "/api/admin/backup"})
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	n, err := io.Copy(to, res.Body)
	if err == nil && strconv.FormatInt(n, 10) != res.Header.Get("Content-Length") {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return n, fmt.Errorf("the backup broke off: %w", err)
	}
	return n, nil
}

// Invariants checks the whole store. It needs a platform key.
func (c *Client) Invariants(ctx context.Context) (*api.Invariants, error) {
	return get[api.Invariants](ctx, c, "/api/admin/invariants", nil)
}

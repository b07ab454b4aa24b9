package client

import (
	"context"
	"net/http"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// Views lists the views that a run has published, without their values.
func (c *Client) Views(ctx context.Context, id perdure.RunID) ([]api.ViewHead, error) {
	var out api.Views
	_, err := c.do(ctx, &request{method: http.MethodGet, path: path(v1+"/runs/%s/views", string(id))}, &out)
	return out.Views, err
}

// View returns the latest value that a run has published under a name.
func (c *Client) View(ctx context.Context, id perdure.RunID, name string) (*api.View, error) {
	return answer[api.View](ctx, c, &request{method: http.MethodGet,
		path: path(v1+"/runs/%s/views/%s", string(id), name)})
}

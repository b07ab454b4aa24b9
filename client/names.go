package client

import (
	"context"
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

// CreateNamedThread creates a thread with a name of the caller's choice. If there is a thread of this
// name, it returns that one, whatever its metadata.
func (c *Client) CreateNamedThread(
	ctx context.Context, name string, metadata json.RawMessage, opts ...CallOptions,
) (*api.Thread, error) {
	body := api.CreateThread{Name: name, Metadata: metadata}
	return answer[api.Thread](ctx, c, &request{method: "POST", path: v1 + "/threads", body: body}, opts...)
}

// ThreadByName returns the thread that has a name.
func (c *Client) ThreadByName(ctx context.Context, name string) (*api.Thread, error) {
	return answer[api.Thread](ctx, c, &request{method: "GET", path: path(v1+"/threads/by-name/%s", name)})
}

// NameThread gives a thread one more name, up to [perdure.MaxNames]. Repeating it changes nothing; a name
// of another thread is [perdure.CodeNameTaken].
func (c *Client) NameThread(
	ctx context.Context, id perdure.ThreadID, name string, opts ...CallOptions,
) (*api.Name, error) {
	at := path(v1+"/threads/%s/names/%s", string(id), name)
	return answer[api.Name](ctx, c, &request{method: "PUT", path: at}, opts...)
}

// RunByName returns the run that has a name. A run gets its first name from [perdure.Submission].
func (c *Client) RunByName(ctx context.Context, name string) (*api.Run, error) {
	return answer[api.Run](ctx, c, &request{method: "GET", path: path(v1+"/runs/by-name/%s", name)})
}

// NameRun gives a run one more name, up to [perdure.MaxNames]. The name stands for the run from a line of
// its log on, or for all of it.
func (c *Client) NameRun(
	ctx context.Context, id perdure.RunID, name string, in api.NameRun, opts ...CallOptions,
) (*api.Name, error) {
	at := path(v1+"/runs/%s/names/%s", string(id), name)
	return answer[api.Name](ctx, c, &request{method: "PUT", path: at, body: in}, opts...)
}

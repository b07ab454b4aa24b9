package httpd

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
)

func listViews(c *call, _ *none) (int, *api.Views, error) {
	list, err := c.s.engine.Runs.Views(c.Context(), c.tenant(), c.run())
	if err != nil {
		return 0, nil, err
	}
	out := &api.Views{Views: make([]api.ViewHead, len(list))}
	for i, p := range list {
		out.Views[i] = api.ViewHead{Name: p.Name, Size: p.Size, Version: p.Version, UpdatedAt: p.At}
	}
	return 0, out, nil
}

func getView(c *call, _ *none) (int, *api.RunView, error) {
	name := c.PathValue("name")
	if err := perdure.CheckViewName("name", name); err != nil {
		return 0, nil, err
	}
	p, err := c.s.engine.Runs.View(c.Context(), c.tenant(), c.run(), name)
	if err != nil {
		return 0, nil, err
	}
	return 0, &api.RunView{ViewHead: api.ViewHead{Name: p.Name, Size: p.Size, Version: p.Version, UpdatedAt: p.At},
		Value: json.RawMessage(p.Value)}, nil
}

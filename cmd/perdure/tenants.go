package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
)

const tenantsUsage = `Usage:

  perdure tenants [list]                     tenants and the limits that are set for them
  perdure tenants show TENANT
  perdure tenants set TENANT --max-live-runs 10000 --max-calls 64
  perdure tenants set TENANT --weight 4      four runs for each one of another tenant

These take a key of the platform. A limit of 0 means the server's default, and a weight of 0 means 1.
`

func tenantsCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	h := &tenantsCall{subcommandCall{ctx: ctx, args: args, stdout: stdout, stderr: stderr}}
	return h.dispatch("tenants", tenantsUsage, "list", []subcommand{
		{"list", "Lists tenants and the limits that are set for them.\n\n  perdure tenants list", h.list},
		{"show TENANT", "Shows a tenant, its limits and how many live runs it has.\n\n  perdure tenants show acme",
			h.show},
		{"set TENANT",
			"Sets limits of a tenant, and makes the tenant if there is none of that name. Limits that are not named " +
				"stay.\nEach node holds to them within a second.\n\n" +
				"  perdure tenants set acme --max-live-runs 10000 --max-calls 64", h.set},
	})
}

type tenantsCall struct{ subcommandCall }

func (h *tenantsCall) list() error {
	_, c, err := h.begin()
	if err != nil {
		return err
	}
	var list []api.Tenant
	for cursor := ""; ; {
		page, err := admin.New(c).Tenants(h.ctx, admin.TenantFilter{Cursor: cursor})
		if err != nil {
			return err
		}
		list = append(list, page.Tenants...)
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	return h.print(list, func(w io.Writer) { printTenants(w, list...) })
}

func (h *tenantsCall) show() error {
	names, c, err := h.begin()
	if err != nil {
		return err
	}
	t, err := admin.New(c).Tenant(h.ctx, perdure.TenantID(names[0]))
	if err != nil {
		return err
	}
	return h.print(t, func(w io.Writer) { printTenants(w, *t) })
}

func (h *tenantsCall) set() error {
	var in perdure.TenantLimitChanges
	for _, f := range []struct {
		name, about string
		to          **int64
	}{
		{"max-live-runs", "`number` of runs that may be live at once, on all nodes together", &in.MaxLiveRuns},
		{"max-calls", "`number` of calls under way at once on each node", &in.MaxCalls},
		{"max-streams", "`number` of streams, sockets and waits open at once on each node", &in.MaxStreams},
		{"max-polls", "`number` of polls that wait at once on each node", &in.MaxPolls},
		{"max-bytes-per-hour", "`bytes` of request bodies that each node accepts in an hour", &in.MaxBytesPerHour},
		{"weight", "`number` of runs, up to 100, that a worker of all tenants takes when its turn comes", &in.Weight},
	} {
		h.flags.Func(f.name, f.about, func(text string) error {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil || n < 0 {
				return fmt.Errorf("takes a whole number, or 0 for the default")
			}
			*f.to = &n
			return nil
		})
	}
	names, c, err := h.begin()
	if err != nil {
		return err
	}
	if in == (perdure.TenantLimitChanges{}) {
		fmt.Fprintln(h.stderr, "perdure tenants set: name a limit, such as --max-live-runs 10000")
		return errUsage
	}
	t, err := admin.New(c).ChangeTenant(h.ctx, perdure.TenantID(names[0]), api.ChangeTenant{Limits: &in})
	if err != nil {
		return err
	}
	return h.print(t, func(w io.Writer) { printTenants(w, *t) })
}

func printTenants(w io.Writer, list ...api.Tenant) {
	limit := func(n int64) string {
		if n == 0 {
			return "default"
		}
		return strconv.FormatInt(n, 10)
	}
	fmt.Fprintln(w, "TENANT\tLIVE RUNS\tWEIGHT\tMAX LIVE RUNS\tMAX CALLS\tMAX STREAMS\tMAX POLLS\tMAX BYTES PER HOUR")
	for _, t := range list {
		live := "-"
		if t.LiveRuns != nil {
			live = strconv.FormatInt(*t.LiveRuns, 10)
		}
		l := t.Limits
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", t.Tenant, live, max(1, l.Weight), limit(l.MaxLiveRuns),
			limit(l.MaxCalls), limit(l.MaxStreams), limit(l.MaxPolls), limit(l.MaxBytesPerHour))
	}
}

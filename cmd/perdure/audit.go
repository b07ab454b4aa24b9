package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
)

func auditCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("audit",
		"Lists who did what to what, newest first: in the key's own tenant, or with --tenant or --all-tenants, which "+
			"take a key of\nthe platform, in another one or everywhere.\n\n  perdure audit --action run.cancel\n"+
			"  perdure audit --all-tenants -n 200", stderr)
	conn := addConnFlags(f)
	var filter admin.AuditFilter
	f.StringVar(&filter.Action, "action", "", "only this `action`, such as key.create")
	f.StringVar(&filter.KeyID, "by", "", "only what the key of this `id` did")
	f.StringVar(&filter.Target, "target", "", "only what was done to this `id`")
	conn.useTenant(f, "of this `tenant` (default: PERDURE_TENANT, or the key's own)")
	all := f.Bool("all-tenants", false, "of all tenants and of the platform itself")
	f.IntVar(&filter.Limit, "n", 50, "at most so many")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	if filter.Limit < 1 || filter.Limit > 1000 {
		fmt.Fprintln(stderr, "perdure audit: -n takes 1 to 1000")
		return errUsage
	}
	if filter.Action != "" && !slices.Contains(perdure.AuditActions, filter.Action) {
		fmt.Fprintf(stderr, "perdure audit: there is no action %q%s\nThe actions are %s\n", filter.Action,
			suggestion(filter.Action, perdure.AuditActions), strings.Join(perdure.AuditActions, ", "))
		return errUsage
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	tenant := conn.tenantName()
	if *all {
		tenant = *conn.tenant
	}
	var page *api.AuditLog
	if tenant != "" || *all {
		page, err = admin.New(c).PlatformAudit(ctx, perdure.TenantID(tenant), filter)
	} else {
		page, err = admin.New(c).Audit(ctx, filter)
	}
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, page)
	}
	return printAudit(page, stdout, stderr)
}

// printAudit prints entries as a table.
func printAudit(page *api.AuditLog, stdout, stderr io.Writer) error {
	if len(page.Entries) == 0 {
		fmt.Fprintln(stdout, "There is nothing of the kind in the audit log.")
	} else {
		w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "AT\tTENANT\tBY\tFROM\tACTION\tTARGET\tDETAIL")
		for i := range page.Entries {
			a := &page.Entries[i]
			by := strings.TrimSpace(a.KeyID + " " + a.KeyName)
			if a.Platform {
				by = strings.TrimSpace(by + " (platform)")
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", a.At.Time().Local().Format("2006-01-02 15:04:05"),
				orDash(string(a.Tenant)), visible(by), orDash(a.Remote),
				visible(a.Action), visible(a.Target), visible(string(a.Detail)))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if page.NextCursor != "" {
		fmt.Fprintln(stderr, "There may be more: give a larger -n, or a filter.")
	}
	return nil
}

// orDash returns a text as visible does, or a dash if it is empty.
func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return visible(text)
}

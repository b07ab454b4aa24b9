package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client/admin"
)

const dashboardAbout = `Prints a link that opens the dashboard in a browser. It works once, within ten
minutes. The login lasts twelve hours, and has the rights of the key that the command is given.

  perdure dashboard
  perdure dashboard --read-only`

func dashboardCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("dashboard", dashboardAbout, stderr)
	conn := addConnFlags(f)
	var in api.OpenSession
	f.BoolVar(&in.ReadOnly, "read-only", false, "the login can change nothing")
	asJSON := f.Bool("json", false, "print JSON")
	if err := parse(f, args); err != nil {
		return err
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	link, err := admin.New(c).LoginLink(ctx, in)
	if err != nil {
		return err
	}
	url := strings.TrimSuffix(conn.addresses()[0], "/") + link.Path
	if *asJSON {
		return printJSON(stdout, map[string]any{"url": url, "expires_at": link.ExpiresAt})
	}
	_, err = fmt.Fprintln(stdout, url)
	return err
}

package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/perdure/perdure/internal/server/settings"
	"github.com/perdure/perdure/supervisor"
)

// configure reads the flags of a command that runs a server, the environment and the file.
func configure(f *flagSet, args []string) (*settings.Config, error) {
	c := settings.AddFlags(f.FlagSet)
	if err := parse(f, args); err != nil {
		return nil, err
	}
	cfg, err := c.Load(os.Getenv)
	if err != nil {
		return nil, err
	}
	if cfg.Supervisor != "" && cfg.Supervisor != scriptedSupervisor {
		if _, err := supervisor.Load(cfg.Supervisor); err != nil {
			return nil, fmt.Errorf("supervisor: %w", err)
		}
	}
	return cfg, cfg.CheckListen()
}

// configCommand implements "perdure config check".
func configCommand(_ context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("config check",
		"Reads the configuration as the server would, says what is in force, and refuses what would not work."+
			"\n\n  perdure config check --config perdure.toml", stderr)
	asJSON := f.Bool("json", false, "print JSON")
	if len(args) == 0 || args[0] != "check" {
		if len(args) > 0 && (args[0] == "-h" || args[0] == "--help") {
			settings.AddFlags(f.FlagSet)
			f.Usage()
			return nil
		}
		fmt.Fprintln(stderr, "Usage: perdure config check [flags]")
		return errUsage
	}
	cfg, err := configure(f, args[1:])
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, cfg.JSON())
	}
	cfg.Print(stdout)
	fmt.Fprintln(stdout, "\nThe configuration is good.")
	return nil
}

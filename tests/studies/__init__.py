"""Studies: programs that make figures which pages show. Each page names the command."""

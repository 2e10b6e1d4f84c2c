// The commands of the operator's guide: the lane executes them as they are written there, and knows which it has not executed.
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** The repository: the guide's commands name files from there. */
export const ROOT = join(dirname(fileURLToPath(import.meta.url)), '..', '..', '..');

/** Every command in the console blocks of these sections is executed by a full run. */
const SECTIONS = {
  'deploy/README.md': ['Installing', 'Upgrading', 'Downgrading', 'Uninstalling', 'Backup and restore'],
  'deploy/kubernetes/README.md': ['The store kubernetes', 'Moving a datastore', 'Removing the definitions'],
};

/** Commands for a host with the programs and without Kubernetes: test/operator-guide.test.ts executes these. */
const OF_HOSTS = /^(podwire|podwire-node|podwire-ipam|rm) /;

function parse(text) {
  const sections = text.split(/^#{2,} /m).slice(1);
  return sections.flatMap((section) => {
    const [title] = section.split('\n');
    const blocks = [...section.matchAll(/```console\n([^`]*)```/g)].map(([, block]) => block);
    return blocks.flatMap((block, index) =>
      block
        .replaceAll(/\\\n\s*/g, '')
        .split('\n')
        .map((line) => line.trim())
        .filter((line) => line !== '' && !line.startsWith('#'))
        .map((line) => ({ section: title, block: index, line })),
    );
  });
}

export class Guide {
  #commands;
  #executed = new Set();

  constructor(file) {
    this.file = file;
    this.#commands = parse(readFileSync(join(ROOT, file), 'utf8'));
  }

  /**
   * Executes a section's block of commands in its order.
   * @param pattern - the executed commands of the block; the rest is left out
   * @throws Error when the guide has no such command, or the error of `execute`
   */
  async follow(section, block, execute, pattern = /./) {
    const found = this.#commands.filter((each) => each.section === section && each.block === block);
    const chosen = found.filter(({ line }) => pattern.test(line));
    if (chosen.length === 0) throw new Error(`${this.file}, ${section}, block ${block + 1}: no command ${pattern}`);
    for (const command of chosen) {
      await execute(command.line);
      this.#executed.add(command);
    }
  }

  /** Commands that no scenario has executed. */
  missed() {
    const sections = SECTIONS[this.file];
    const wanted = this.#commands.filter(({ section, line }) => sections.includes(section) && !OF_HOSTS.test(line));
    const missed = wanted.filter((command) => !this.#executed.has(command));
    return missed.map(({ section, line }) => `${section}: ${line}`);
  }
}

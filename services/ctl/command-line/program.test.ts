import { describe, expect, test } from 'vitest';

import { VERBS as TABLE } from '../verbs.js';
import { ADDRESS, ATTACHMENT, DURATION_MS, LABEL, MOMENT, SEQUENCE_NUMBER, wholeNumber, type Form } from './forms.js';
import { GLOBAL_FLAGS, GLOBAL_OPTIONS, OUTPUT, TIMEOUT } from './global-options.js';
import { loadVerbs, parseCommandLine } from './program.js';

const VERBS = await loadVerbs([], TABLE);

const parse = (line: string) => parseCommandLine(line === '' ? [] : line.split(' '), VERBS, { version: '1.2.3' });

function parsed(line: string) {
  const command = parse(line);
  if (command.kind !== 'run') throw new Error(`${line}: ${JSON.stringify(command)}`);
  return command;
}

describe('a command line', () => {
  test.each([
    ['get pools', 'get'],
    ['pods --output json', 'pods list'],
    ['--output json pods list', 'pods list'],
    ['pods -o json list', 'pods list'],
    ['get blocks --pool a', 'get'],
    ['node -o json', 'node status'],
    ['who 10.65.0.7', 'who'],
    ['release address 10.65.0.7 --yes', 'release address'],
    ['delete handle -- --odd--', 'delete'],
    ['journal retry', 'journal retry'],
    ['journal discard 7 --yes', 'journal discard'],
  ])('"%s" is %s', (line, name) => {
    expect(parsed(line).verb.name).toBe(name);
  });

  test('options may be anywhere, with their value as --name value or --name=value', () => {
    const { globals } = parsed('--timeout=2m get pools --output yaml');
    expect([globals.get(TIMEOUT), globals.get(OUTPUT)]).toEqual([120_000, 'yaml']);
    expect(parsed('get pools').globals.get(OUTPUT)).toBeUndefined();
  });

  test.each([
    ['', 'usage: podwirectl'],
    ['gte', "unknown command 'gte'\n(Did you mean get?)"],
    ['kubectl', /unknown command 'kubectl'\ntry: podwirectl --help\n$/],
    ['help polls', 'usage: podwirectl'],
    ['pods lst', 'Expected 0 arguments but got 1'],
    ['ipam configure --strict-affinity true', "unknown option '--strict-affinity'\n(Did you mean --strictaffinity?)"],
    ['release', /commands:\n +release address[^]*\n +release attachment/],
    ['--verbose get pools', "unknown option '--verbose'"],
    ['get pools --verbose', "unknown option '--verbose'"],
    ['patch', "missing required argument 'KIND'"],
    ['get polls', 'KIND "polls" is not one of ippools, ipreservations'],
    ['explain a b', 'Expected 1 argument but got 2'],
    ['get pools --output xml', '--output "xml" is not one of table, wide, json, yaml, name'],
    ['get pools --output', "'-o, --output <table|wide|json|yaml|name>' argument missing"],
    ['get pools --timeout 0s', '--timeout "0s" is not a duration'],
    ['get pools --ipam 10.0.0.1', '--ipam "10.0.0.1" is neither unix:/absolute/path nor host:port'],
    ['get pools --plugin cni.sock', '--plugin "cni.sock" is not an absolute path'],
    ['get blocks --pool a --pool b', '--pool is repeated'],
    ['gc --yes=no', "'--yes=no'"],
    ['who 10.65.0.0/24', 'ADDRESS|POD "10.65.0.0/24" is a range'],
    ['who 010.65.0.7', 'is not an IP address'],
    ['journal show', "missing required argument 'ENTRY'"],
  ])('"%s" is refused: %s', (line, reason) => {
    const expected = typeof reason === 'string' ? expect.stringContaining(reason) : expect.stringMatching(reason);
    const refused = parse(line);
    expect(refused).toMatchObject({ kind: 'text', exitCode: line === 'help polls' ? 0 : 2 });
    expect(refused).toMatchObject({ [line === 'help polls' ? 'stdout' : 'stderr']: expected });
  });

  test('--help has priority anywhere, even over errors', () => {
    const usage = (line: string) => ({
      kind: 'text',
      exitCode: 0,
      stdout: expect.stringContaining(`usage: ${line} [`),
    });
    expect(parse('--help')).toMatchObject(usage('podwirectl'));
    expect(parse('journal -h')).toMatchObject(usage('podwirectl journal'));
    expect(parse('ipam split --nonsense --help')).toMatchObject(usage('podwirectl ipam split'));
    expect(parse('help')).toMatchObject(usage('podwirectl'));
    expect(parse('help ipam split')).toMatchObject(usage('podwirectl ipam split'));
    expect(parse('help ipam')).toMatchObject(usage('podwirectl ipam'));
    expect(parsed('journal show help').verb.name).toBe('journal show');
    expect(parse('--version')).toMatchObject({ kind: 'text', exitCode: 0, stdout: 'podwirectl 1.2.3\n' });
  });
});

test.each([
  ['journal', ['journal list', 'journal show', 'journal retry', 'journal discard']],
  ['-o json who 10.65.0.7', ['who']],
  ['help pods check', ['pods list', 'pods check', 'pods repair']],
])('only commands that "%s" may mean are loaded', async (line, names) => {
  expect((await loadVerbs(line.split(' '), TABLE)).map(({ name }) => name)).toEqual(names);
});

describe('the help', () => {
  const helpOf = (words: string): string => {
    const help = parse(`${words} --help`.trim());
    return help.kind === 'text' ? help.stdout : '';
  };

  test.each(VERBS.map((verb) => [verb.name, verb] as const))(
    'of %s lists every argument that the parser accepts',
    (name, verb) => {
      const help = helpOf(name);
      const plain = help.replaceAll(/\s+/g, ' ');
      expect(help).toContain(`usage: podwirectl ${name}`);
      for (const { name: option } of [
        ...(verb.options ?? []),
        ...(verb.flags ?? []),
        ...GLOBAL_OPTIONS,
        ...GLOBAL_FLAGS,
      ])
        expect(help).toMatch(new RegExp(`^  (-., )?${option}( |$)`, 'm'));
      for (const { about } of verb.positionals ?? []) expect(plain).toContain(about);
      for (const listing of new Set(['', name.split(' ').slice(0, -1).join(' ')]))
        expect(helpOf(listing).replaceAll(/\s+/g, ' ')).toContain(`${name} ${verb.about}`);
    },
  );

  test.each(VERBS.flatMap(({ examples = [] }) => examples))('has a valid example: %s', (example) => {
    const words = [...example.matchAll(/'([^']*)'|"([^"]*)"|(\S+)/g)].map(
      ([, single, double, bare]) => single ?? double ?? bare ?? '',
    );
    expect(parseCommandLine(words, VERBS).kind).toBe('run');
  });

  test.each([
    [60, 80],
    [100, 100],
    [200, 120],
  ])('on a terminal of %i columns has %i', (columns, width) => {
    const help = parseCommandLine(['--help'], VERBS, { columns });
    const lines = help.kind === 'text' ? help.stdout.split('\n').map(({ length }) => length) : [];
    expect(Math.max(...lines)).toBeLessThanOrEqual(width);
    expect(Math.max(...lines)).toBeGreaterThan(width - 20);
  });

  test('of a noun lists only its commands', () => {
    const help = helpOf('journal');
    expect(help).toMatch(/^ +journal discard /m);
    expect(help).not.toMatch(/^ +split /m);
  });

  test('names of commands, and of the options of a command, are unique', () => {
    expect(VERBS.map(({ name }) => name)).toEqual(Object.keys(TABLE));
    for (const { options = [], flags = [] } of VERBS) {
      const globals = [...GLOBAL_OPTIONS, ...GLOBAL_FLAGS].filter((each) =>
        options.every(({ name }) => name !== each.name),
      );
      const names = [...options, ...flags, ...globals].map(({ name }) => name);
      expect(new Set(names).size).toBe(names.length);
    }
  });
});

describe('a form', () => {
  const cases: readonly (readonly [string, Form<unknown>, string, unknown])[] = [
    ['address', ADDRESS, 'FD65:0::7', 'fd65::7'],
    ['address', ADDRESS, '10.65.0.7/32', '10.65.0.7'],
    ['sequence number', SEQUENCE_NUMBER, '18446744073709551615', 18_446_744_073_709_551_615n],
    ['label', LABEL, 'a=b=c', { key: 'a', value: 'b=c' }],
    ['attachment', ATTACHMENT, 'n/c/eth0', { network: 'n', containerId: 'c', interfaceName: 'eth0' }],
    ['duration', DURATION_MS, '500ms', 500],
    ['duration', DURATION_MS, '2h', 7_200_000],
    ['time-out', TIMEOUT.form, '1d', 86_400_000],
    ['moment', MOMENT, '30m', { agoMs: 1_800_000 }],
    ['moment', MOMENT, '2026-05-04T12:30:00+02:00', { atMs: Date.UTC(2026, 4, 4, 10, 30) }],
    ['moment', MOMENT, '2026-05-04 12:30Z', { atMs: Date.UTC(2026, 4, 4, 12, 30) }],
    ['number', wholeNumber('N', { min: 2, max: 64 }), '64', 64],
  ];

  test.each(cases)('%s reads %o', (_, form, text, value) => {
    expect(form.read(text)).toEqual({ ok: true, value });
  });

  test.each<readonly [string, Form<unknown>, string]>([
    ['address', ADDRESS, 'web-0'],
    ['sequence number', SEQUENCE_NUMBER, '-1'],
    ['sequence number', SEQUENCE_NUMBER, '18446744073709551616'],
    ['label', LABEL, '=x'],
    ['attachment', ATTACHMENT, 'n/c'],
    ['duration', DURATION_MS, '10'],
    ['duration', DURATION_MS, '1.5s'],
    ['duration', DURATION_MS, '36501d'],
    ['time-out', TIMEOUT.form, '25h'],
    ['moment', MOMENT, '2026-05-04T12:30:00'],
    ['moment', MOMENT, '2026-13-04T12:30:00Z'],
    ['moment', MOMENT, 'yesterday'],
    ['moment', MOMENT, '999999999d'],
    ['number', wholeNumber('N', { min: 2, max: 64 }), '65'],
    ['number', wholeNumber('N', { min: 2, max: 64 }), '0x10'],
  ])('%s refuses "%3$s" with a reason', (_, form, text) => {
    expect(form.read(text)).toMatchObject({ ok: false, fault: expect.stringMatching(/^is /) });
  });
});

import { describe, expect, test } from 'vitest';

import { VERBS } from '../verbs.js';
import { ADDRESS, ATTACHMENT, DURATION_MS, LABEL, MOMENT, SEQUENCE_NUMBER, wholeNumber, type Form } from './forms.js';
import { GLOBAL_FLAGS, GLOBAL_OPTIONS, OUTPUT, TIMEOUT } from './global-options.js';
import { helpOf } from './help.js';
import { closestWord, parseCommandLine } from './parse.js';

const parse = (line: string) => parseCommandLine(line === '' ? [] : line.split(' '), VERBS);

function parsed(line: string) {
  const command = parse(line);
  if (command.kind !== 'run') throw new Error(`${line}: ${JSON.stringify(command)}`);
  return command;
}

describe('a command line', () => {
  test.each([
    ['pools', 'pools list'],
    ['pools --output json', 'pools list'],
    ['--output json pools list', 'pools list'],
    ['pools -o json list', 'pools list'],
    ['blocks --pool a', 'blocks list'],
    ['config', 'config get'],
    ['node -o json', 'node status'],
    ['who 10.65.0.7', 'who'],
    ['release address 10.65.0.7 --yes', 'release address'],
    ['release handle -- --odd--', 'release handle'],
    ['journal retry', 'journal retry'],
    ['journal discard 7 --yes', 'journal discard'],
  ])('"%s" is %s', (line, name) => {
    expect(parsed(line).verb.name).toBe(name);
  });

  test('options may be anywhere, with their value as --name value or --name=value', () => {
    const { globals } = parsed('--timeout=2m pools list --output yaml');
    expect([globals.get(TIMEOUT), globals.get(OUTPUT)]).toEqual([120_000, 'yaml']);
    expect(parsed('pools').globals.get(OUTPUT)).toBeUndefined();
  });

  test.each([
    ['', 'no command'],
    ['polls', 'unknown command "polls"; did you mean "pools"?'],
    ['kubectl', /^unknown command "kubectl"$/],
    ['hlep pools', 'did you mean "help"?'],
    ['help polls', 'unknown command "polls"; did you mean "pools"?'],
    ['pools lst', '"pools" has no command "lst"; did you mean "list"?'],
    ['pools kubectl', '"pools" has no command "kubectl"; its commands: list, show'],
    ['pools create a --blocksize 26', 'has no option "--blocksize"; did you mean "--block-size"?'],
    ['release', '"release" is incomplete; its commands: address, attachment, handle'],
    ['--verbose pools', 'unknown option "--verbose" before a command'],
    ['pools --verbose', '"pools list" has no option "--verbose"'],
    ['pools show', '"pools show" requires NAME: name of the pool'],
    ['pools show a b', '"pools show" does not take "b"'],
    ['pools --output xml', '--output "xml" is not one of table, yaml, json'],
    ['pools --output', '--output requires a value'],
    ['pools --timeout 0s', '--timeout "0s" is not a duration'],
    ['pools --ipam 10.0.0.1', '--ipam "10.0.0.1" is neither unix:/absolute/path nor host:port'],
    ['pools --plugin cni.sock', '--plugin "cni.sock" is not an absolute path'],
    ['blocks --pool a --pool b', '--pool is repeated'],
    ['gc --yes=no', '--yes takes no value'],
    ['who 10.65.0.0/24', 'ADDRESS "10.65.0.0/24" is a range'],
    ['who 010.65.0.7', 'is not an IP address'],
    ['reservations create a', '"reservations create" requires CIDR'],
  ])('"%s" is refused: %s', (line, reason) => {
    const expected = typeof reason === 'string' ? expect.stringContaining(reason) : expect.stringMatching(reason);
    expect(parse(line)).toMatchObject({ kind: 'invalid', reason: expected });
  });

  test('--help has priority anywhere, even over errors', () => {
    expect(parse('--help')).toEqual({ kind: 'help', words: [] });
    expect(parse('pools -h')).toEqual({ kind: 'help', words: ['pools'] });
    expect(parse('pools create --nonsense --help')).toEqual({ kind: 'help', words: ['pools', 'create'] });
    expect(parse('help')).toEqual({ kind: 'help', words: [] });
    expect(parse('help pools create')).toEqual({ kind: 'help', words: ['pools', 'create'] });
    expect(parse('help pools')).toEqual({ kind: 'help', words: ['pools'] });
    expect(parsed('pools show help').verb.name).toBe('pools show');
    expect(parse('--version')).toEqual({ kind: 'version' });
  });
});

describe('the help', () => {
  test.each(VERBS.map((verb) => [verb.name, verb] as const))(
    'of %s lists every argument that the parser accepts',
    (name, verb) => {
      const help = helpOf(name.split(' '), VERBS);
      expect(help).toContain(`usage: podwirectl ${name}`);
      for (const { name: option } of [
        ...(verb.options ?? []),
        ...(verb.flags ?? []),
        ...GLOBAL_OPTIONS,
        ...GLOBAL_FLAGS,
      ])
        expect(help).toContain(`  ${option}`);
      for (const { about } of verb.positionals ?? []) expect(help).toContain(about);
      expect(helpOf([], VERBS)).toContain(verb.about);
    },
  );

  test.each(VERBS.flatMap(({ examples = [] }) => examples))('has a valid example: %s', (example) => {
    const words = [...example.matchAll(/"([^"]*)"|(\S+)/g)].map(([, inQuotes, bare]) => inQuotes ?? bare ?? '');
    expect(parseCommandLine(words, VERBS).kind).toBe('run');
  });

  test('of a noun lists only its commands', () => {
    const help = helpOf(['reservations'], VERBS);
    expect(help).toContain('reservations update');
    expect(help).not.toContain('pools');
  });

  test('names of commands, and of the options of a command, are unique', () => {
    expect(new Set(VERBS.map(({ name }) => name)).size).toBe(VERBS.length);
    for (const { options = [], flags = [] } of VERBS) {
      const names = [...options, ...flags, ...GLOBAL_OPTIONS, ...GLOBAL_FLAGS].map(({ name }) => name);
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

const KNOWN = ['pools', 'pods', 'nodes', 'node', 'journal', 'reservations', 'who'];

test.each([
  ['polls', 'pools'],
  ['pool', 'pools'],
  ['pod', 'pods'],
  ['jorunal', 'journal'],
  ['reservation', 'reservations'],
  ['res', 'reservations'],
  ['wo', 'who'],
])('the closest word to "%s" is "%s"', (word, expected) => {
  expect(closestWord(word, KNOWN)).toBe(expected);
});

test.each(['kubectl', 'x', '', 'delete'])('"%s" has no close word', (word) => {
  expect(closestWord(word, KNOWN)).toBeUndefined();
});

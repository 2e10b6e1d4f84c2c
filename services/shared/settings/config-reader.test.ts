import { describe, expect, test } from 'vitest';

import { Failure } from '../failure/failure.js';
import { readSettings, type Setting } from './config-reader.js';
import { absolutePath, flag, listOf, oneOf, rpcAddress, wholeNumber } from './setting.js';

const settings = {
  listen: {
    variable: 'PODWIRE_IPAM_LISTEN',
    schema: listOf(rpcAddress),
    default: 'unix:/run/podwire/ipam.sock',
    about: 'Where to listen.',
  } satisfies Setting<string[]>,
  directory: {
    variable: 'PODWIRE_IPAM_STORE_DIRECTORY',
    schema: absolutePath,
    default: '/var/lib/podwire',
    about: 'Where the datastore is.',
  } satisfies Setting<string>,
  timeoutMs: {
    variable: 'PODWIRE_IPAM_TIMEOUT_MS',
    schema: wholeNumber(1, 1000),
    default: '100',
    about: 'Time for a call, in milliseconds.',
  } satisfies Setting<number>,
  level: {
    variable: 'PODWIRE_IPAM_LOG_LEVEL',
    schema: oneOf(['info', 'error']),
    default: 'info',
    about: 'Level of the log.',
  } satisfies Setting<string>,
  strict: {
    variable: 'PODWIRE_IPAM_STRICT',
    schema: flag,
    default: 'false',
    about: 'No borrowing.',
  } satisfies Setting<boolean>,
};

const DEFAULTS = {
  listen: ['unix:/run/podwire/ipam.sock'],
  directory: '/var/lib/podwire',
  timeoutMs: 100,
  level: 'info',
  strict: false,
};

const read = (env: Readonly<Record<string, string | undefined>>) =>
  readSettings({ settings, prefix: 'PODWIRE_IPAM_', env });

function refusal(env: Readonly<Record<string, string>>): Failure {
  try {
    read(env);
  } catch (error) {
    expect(error).toBeInstanceOf(Failure);
    if (error instanceof Failure) return error;
  }
  return expect.unreachable('the settings were taken');
}

const variables = Object.values(settings).map(({ variable }) => variable);
const everyVariable = (value: string) => Object.fromEntries(variables.map((variable) => [variable, value]));

describe('values', () => {
  test('are the defaults without a variable', () => {
    expect(read({})).toEqual(DEFAULTS);
    expect(read({ PODWIRE_IPAM_LISTEN: undefined, HOME: '/root' })).toEqual(DEFAULTS);
  });

  test('an empty variable means its default', () => {
    expect(read(everyVariable(''))).toEqual(DEFAULTS);
  });

  test('are read by their forms', () => {
    const env = {
      PODWIRE_IPAM_LISTEN: 'unix:/a, [::1]:80,ipam:443',
      PODWIRE_IPAM_STORE_DIRECTORY: '/srv',
      PODWIRE_IPAM_TIMEOUT_MS: '1',
      PODWIRE_IPAM_LOG_LEVEL: 'error',
      PODWIRE_IPAM_STRICT: 'true',
    };
    expect(read(env)).toEqual({
      listen: ['unix:/a', '[::1]:80', 'ipam:443'],
      directory: '/srv',
      timeoutMs: 1,
      level: 'error',
      strict: true,
    });
  });
});

describe('a refusal', () => {
  test('lists every invalid variable at once, with its value and purpose', () => {
    const failure = refusal({ ...everyVariable('?'), PODWIRE_IPAM_TIMEOUT: '5' });
    expect(failure.code).toBe('INVALID_SETTINGS');
    expect(failure.violations.map(({ field }) => field).sort()).toEqual([...variables, 'PODWIRE_IPAM_TIMEOUT'].sort());
    const reason = new Map(failure.violations.map(({ field, reason }) => [field, reason]));
    for (const { variable, about } of Object.values(settings)) {
      expect(reason.get(variable)).toMatch(/^is "\?": is (not|neither) /);
      expect(reason.get(variable)).toContain(about);
      expect(failure.message).toContain(variable);
    }
    expect(reason.get('PODWIRE_IPAM_TIMEOUT')).toContain('PODWIRE_IPAM_TIMEOUT_MS');
  });

  test.each([
    'PODWIRE_IPAM_LISTNE',
    'PODWIRE_IPAM_',
    'PODWIRE_LISTEN',
    'PODWIRE_IPAMS_LISTEN',
    'PODWIRE_IPAM_TIMEOUT_MS_',
  ])('%s is an unknown setting', (variable) => {
    expect(refusal({ [variable]: '' }).violations).toHaveLength(1);
  });

  test.each([
    'PODWIRE_NODE_LISTEN',
    'PODWIRE_NODE_NO_SUCH',
    'PODWIRE_ROUTING',
    'PODWIRE_BIRD_RUN',
    'podwire_ipam_listen',
    'MY_PODWIRE_IPAM_X',
  ])('%s of another process is ignored', (variable) => {
    expect(read({ [variable]: '?' })).toEqual(DEFAULTS);
  });

  test('covers misspelled variables under further prefixes of a process', () => {
    const source = { settings, prefix: 'PODWIRE_IPAM_', furtherPrefixes: ['PODWIRE_BIRD_'] };
    const env = { PODWIRE_BIRD_RNU: 'child', PODWIRE_ROUTING: 'bird' };
    expect(() => readSettings({ ...source, env })).toThrow(/PODWIRE_BIRD_RNU is an unknown setting/);
  });

  // The kubelet sets these variables for the Services podwire-ipam and podwire of the pod's namespace.
  test.each([
    'PODWIRE_IPAM_SERVICE_HOST',
    'PODWIRE_IPAM_SERVICE_PORT',
    'PODWIRE_IPAM_SERVICE_PORT_GRPC_TLS',
    'PODWIRE_IPAM_PORT',
    'PODWIRE_IPAM_PORT_50051_TCP',
    'PODWIRE_IPAM_PORT_50051_TCP_PROTO',
    'PODWIRE_IPAM_PORT_50051_TCP_PORT',
    'PODWIRE_IPAM_PORT_50051_TCP_ADDR',
    'PODWIRE_SERVICE_HOST',
  ])('%s is a link to a Service, not a misspelling', (variable) => {
    expect(read({ [variable]: 'tcp://10.96.0.7:50051' })).toEqual(DEFAULTS);
  });

  test('covers an invalid default, which is a fault of the declaration that every start shows', () => {
    const broken = {
      count: { variable: 'PODWIRE_IPAM_COUNT', schema: wholeNumber(1, 9), default: '10', about: 'Count.' },
    };
    expect(() => readSettings({ settings: broken, prefix: 'PODWIRE_IPAM_', env: {} })).toThrow(
      'PODWIRE_IPAM_COUNT is "10": is not from 1 to 9. Count.',
    );
  });
});

import { DiagnosticsServiceService, type CollectResponse } from '@podwire/proto/podwire/diagnostics/v1/diagnostics';

import { messageOf } from '../failure/thrown.js';
import type { ProcessRelease } from '../runtime/process-release.js';
import type { RecentLines } from '../runtime/recent-lines.js';
import { metricsPage } from '../telemetry/telemetry.js';
import type { RpcService } from '../rpc/server.js';
import type { Streaming } from '../rpc/streaming.js';

/** A file of a support bundle. */
export interface DiagnosticFile {
  readonly name: string;
  /** An object is written as JSON. */
  readonly content: () => string | object | Promise<string | object>;
}

export interface DiagnosticsOptions {
  readonly release: ProcessRelease;
  readonly lines: RecentLines;
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Files besides the files of every process. */
  readonly files: () => Promise<readonly DiagnosticFile[]>;
}

const PART_BYTES = 64 * 1024;

export function diagnosticsService(
  { release, lines, env, files }: DiagnosticsOptions,
  streaming: Streaming,
): RpcService {
  return {
    name: 'podwire.diagnostics.v1.DiagnosticsService',
    definition: DiagnosticsServiceService,
    implementation: {
      collect: streaming(DiagnosticsServiceService.collect, async function* ({ since }) {
        const own: DiagnosticFile[] = [
          { name: 'version.json', content: () => release },
          { name: 'settings.json', content: () => settingsOf(env) },
          { name: 'metrics.txt', content: metricsPage },
          { name: 'log.jsonl', content: () => lines.text(since) },
        ];
        for (const file of [...own, ...(await files())]) yield* partsOf(file);
      }),
    },
  };
}

async function* partsOf({ name, content }: DiagnosticFile): AsyncGenerator<CollectResponse> {
  const bytes = Buffer.from(await textOf(content));
  for (let start = 0; start === 0 || start < bytes.length; start += PART_BYTES)
    yield { file: name, part: bytes.subarray(start, start + PART_BYTES) };
}

async function textOf(content: DiagnosticFile['content']): Promise<string> {
  try {
    const made = await content();
    return typeof made === 'string' ? made : `${JSON.stringify(made, plainValue, 2)}\n`;
  } catch (error) {
    return `cannot be read: ${messageOf(error)}\n`;
  }
}

function plainValue(_: string, value: unknown): unknown {
  return typeof value === 'bigint' ? String(value) : value;
}

/** The variables of Podwire and OpenTelemetry. */
const VARIABLE = /^(PODWIRE|OTEL)_/;

/** Variables whose values prove an identity: headers of an exporter, and names that say so. Files with secrets are named only. */
const SECRET = /HEADERS|PASSWORD(?!_FILE)|TOKEN(?!_FILE|S$)|SECRET/;

/** User name and password of a URL, and its query, which may have a key. */
const CREDENTIALS = /(?<=:\/\/)[^/@\s]*(?=@)|(?<=:\/\/[^\s,?]*\?)[^\s,]+/g;

function settingsOf(env: DiagnosticsOptions['env']): Record<string, string> {
  const names = Object.keys(env).filter((name) => VARIABLE.test(name));
  const value = (name: string): string =>
    SECRET.test(name) ? '(redacted)' : (env[name] ?? '').replace(CREDENTIALS, '(redacted)');
  return Object.fromEntries(names.sort().map((name) => [name, value(name)]));
}

import { createWriteStream } from 'node:fs';
import { Readable, type Writable } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';

import { Failure } from '@podwire/shared/failure/failure';
import { createTarPacker } from 'modern-tar';

interface ArchiveOptions {
  readonly folder: string;
  readonly time: Date;
  readonly stdout: Writable;
}

/** A compressed tar archive that is written as its files arrive. Readable by its owner only. */
export class Archive {
  readonly path: string;
  readonly #folder: string;
  readonly #time: Date;
  readonly #packer = createTarPacker();
  readonly #written: Promise<void>;
  #failure: unknown;
  /** Ends with the last added file: files follow one another. */
  #latest: Promise<void> = Promise.resolve();

  /**
   * @param path - of a new file; `-` for the standard output
   * @param folder - name of the folder that all files are in
   */
  constructor(path: string, { folder, time, stdout }: ArchiveOptions) {
    this.path = path;
    this.#folder = folder;
    this.#time = time;
    const output = path === '-' ? stdout : createWriteStream(path, { flags: 'wx', mode: 0o600 });
    this.#written = pipeline(Readable.fromWeb(this.#packer.readable), createGzip(), output, { end: path !== '-' });
    this.#written.catch((error: unknown) => (this.#failure = error));
  }

  /** @throws Failure INVALID_REQUEST where the archive cannot be written */
  add(name: string, content: string | Uint8Array): Promise<void> {
    const added = this.#latest.then(() => this.#add(name, content));
    this.#latest = added.catch(() => undefined);
    return added;
  }

  async #add(name: string, content: string | Uint8Array): Promise<void> {
    if (this.#failure !== undefined) throw this.#refusal(this.#failure);
    const body = typeof content === 'string' ? Buffer.from(content) : content;
    const header = { name: `${this.#folder}/${name}`, size: body.length, type: 'file', mode: 0o600 } as const;
    const writer = this.#packer.controller.add({ ...header, mtime: this.#time }).getWriter();
    await writer.write(body);
    await writer.close();
  }

  /** @throws Failure as {@link add} */
  async finish(): Promise<void> {
    this.#packer.controller.finalize();
    try {
      await this.#written;
    } catch (error) {
      throw this.#refusal(error);
    }
  }

  #refusal(cause: unknown): Failure {
    return new Failure(
      'INVALID_REQUEST',
      `${this.path}: cannot be written: ${String(cause)}; name another with --file`,
      {
        cause,
      },
    );
  }
}

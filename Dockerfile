# gma serve on a CPU:  docker build -t gma . && docker run -p 8000:8000 -e GMA_TOKEN=... gma
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN python -m venv /opt/gma
ENV PATH=/opt/gma/bin:$PATH
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
COPY . /src
RUN pip install --no-cache-dir "/src[serve]"

FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --home-dir /nonexistent --shell /usr/sbin/nologin gma
COPY --from=build /opt/gma /opt/gma
ENV PATH=/opt/gma/bin:$PATH OMP_NUM_THREADS=1
USER gma
EXPOSE 8000
# torch takes a few seconds to load
HEALTHCHECK --start-period=30s --interval=10s --timeout=3s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
STOPSIGNAL SIGTERM
# without GMA_TOKEN it refuses to listen where others can reach it
ENTRYPOINT ["gma", "serve", "--host", "0.0.0.0"]
